"""What every part of dataflow builds on: durable small files, rows as JSON, named fault points."""
