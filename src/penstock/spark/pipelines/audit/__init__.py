"""`audit`: what is lost, doubled, changed or out of order, between topics and against a lake."""
