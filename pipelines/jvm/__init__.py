"""Java, the jars and the Spark session of the job, on one machine or on a cluster."""
