"""What a person looks at: tables, files and figures, made from scores and from nothing else."""
