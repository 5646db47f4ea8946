"""The base layer of every other package: settings, records, object store, registry, the local stack."""
