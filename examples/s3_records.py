"""Records in an S3 bucket: written there, opened where they lie, read in an order that is continued."""

import logging
import os

import boto3
import numpy as np
from moto.server import ThreadedMotoServer

import thalweg as tw

# A server on this machine stands for S3; with the real one leave out the endpoint and these two variables.
os.environ |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}
logging.getLogger("werkzeug").setLevel("ERROR")
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
endpoint = f"http://{host}:{port}"
boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket="corpus")
options = {"endpoint_url": endpoint}

rng = np.random.default_rng(0)
with tw.create_records("s3://corpus/tokens", shard_bytes="64KB", storage_options=options) as writer:
    for n in range(2000):  # whole when the block ends, nothing after an error
        writer.write({"input_ids": rng.integers(1, 1000, rng.integers(5, 100)).astype(np.int32)}, id=f"doc-{n}")

records = tw.open_records("s3://corpus/tokens", storage_options=options, cache_dir="cache")
print(f"{len(records):,} documents, {records.num_tokens:,} tokens, read from {records.path}")
feed = tw.from_records(records).shuffle().pack(512).batch(4)
loader = tw.Loader(feed, epochs=None, max_steps=30, return_tensors="np")

seen = [batch.info.ids for batch in loader]
again = tw.Loader(feed, epochs=None, max_steps=60, return_tensors="np")
again.load_state_dict(loader.state_dict())
more = [batch.info.ids for batch in again]
server.stop()

flat = [name for batch in seen + more for row in batch for name in row]
print(f"{len(seen)} + {len(more)} batches, {len(flat):,} documents")
assert (len(seen), len(more)) == (30, 30)
assert len(set(flat[:1900])) == 1900  # nothing twice before everything was seen
