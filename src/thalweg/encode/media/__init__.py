"""Pictures, clips and sounds: counted by their headers when a sample is encoded, decoded when its batch is built."""
