"""The metadata of a cluster: its keys, documents and image, and the stores that hold them."""
