"""The words that all other rooms share: types, protocols, the registry, configuration, errors, seeds and statistics."""
