"""`penstock cluster`: starting, inspecting and operating several brokers."""
