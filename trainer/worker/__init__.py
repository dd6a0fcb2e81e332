"""The worker process: it joins the cluster, trains, records, and ends."""
