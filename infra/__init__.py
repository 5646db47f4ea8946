"""What every room stands on: settings, records, object store, registry, the local stack."""
