"""`audit`: finds lost, duplicated, changed and out-of-order records, between topics and against a lake."""
