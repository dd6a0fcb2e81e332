"""What the measurements of `benchmarks/` say: tables, sentences, pictures, files."""
