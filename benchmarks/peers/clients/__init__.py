"""The clients: one module for each protocol, with the same names in all of them."""
