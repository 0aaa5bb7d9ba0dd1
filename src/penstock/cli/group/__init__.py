"""`penstock group`: lists, describes and resets consumer groups."""
