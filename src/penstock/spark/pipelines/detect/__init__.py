"""`detect`: rules with memory over a stream, which make alerts."""
