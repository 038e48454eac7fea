"""Objects: named, immutable bytes in a folder or in a bucket."""

from holdfast.store.objects.objects import ObjectExists, Objects, StoredObject

__all__ = ["ObjectExists", "Objects", "StoredObject"]
