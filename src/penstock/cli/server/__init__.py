"""`penstock serve` and `penstock check-config`: start a broker, and check its settings."""
