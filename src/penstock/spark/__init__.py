"""Spark's part of Penstock: topics as Spark tables and streams, and the pipelines built on them."""

from penstock.spark.register_format import register

__all__ = ["register"]
