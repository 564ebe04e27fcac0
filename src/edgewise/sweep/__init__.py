"""Many runs of models and calibrators on datasets, planned, run and stored."""
