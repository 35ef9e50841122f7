"""What every stage may use: options, errors, the on-disk store, reports, the text writer."""
