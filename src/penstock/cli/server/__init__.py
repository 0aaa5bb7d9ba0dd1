"""`penstock serve` and `penstock check-config`: starting a broker, and checking its settings."""
