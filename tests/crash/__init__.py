"""Operations on a store, killed or denied room at any moment, and what is left looked at."""
