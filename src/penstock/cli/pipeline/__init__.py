"""`penstock pipeline`: data pipelines on Spark."""
