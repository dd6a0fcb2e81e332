"""Analysis of the measurements of `benchmarks/`: tables, sentences, pictures, files."""
