"""A model repository becomes a plan: storage, config.pbtxt, completion, validation, versions, planning."""
