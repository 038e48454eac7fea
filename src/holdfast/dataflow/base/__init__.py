"""What every part of dataflow stands on: durable small files, rows as JSON, named fault points."""
