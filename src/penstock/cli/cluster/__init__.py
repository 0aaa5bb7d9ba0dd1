"""`penstock cluster`: starts, inspects and operates several brokers."""
