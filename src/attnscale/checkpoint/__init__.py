"""A finished RoFormer from elsewhere, evaluated under this protocol with what changes at test time; trains nothing."""
