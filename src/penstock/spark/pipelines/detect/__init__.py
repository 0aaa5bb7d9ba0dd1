"""`detect`: evaluates stateful rules over a stream and writes alerts."""
