"""`penstock group`: listing, describing and moving consumer groups."""
