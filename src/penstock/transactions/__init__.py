"""Transactions: the state machine of `__transaction_state`."""
