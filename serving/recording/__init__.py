"""The recording of events: redaction, the spool on this machine's disk, and shipping to the object store."""
