"""The two slots: their engines, the versions they hold, and the assignment of users to the arms of an experiment."""
