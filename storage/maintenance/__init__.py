"""Tables kept in shape: small files merged, logs shortened, what nobody needs deleted."""
