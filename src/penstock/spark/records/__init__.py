"""Bulk conversion of records: batches to Arrow and back with numpy, many records at a time."""
