"""`insights`: reports how a topic is used, as a page with plots and advice."""
