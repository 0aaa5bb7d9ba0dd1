"""`penstock pipeline`: runs data pipelines on Spark."""
