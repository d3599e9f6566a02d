# Images of Heliograph: `broker` runs one broker, `operator` keeps brokers on Kubernetes, `client` is the command line with
# Pulsar's Python client, for a pod that publishes or looks on, and `spark` has the jobs on Spark: driver and executors.
#   docker build --target broker -t heliograph/broker .        or, without Docker: scripts/build-image
# The base by its digest, which is that of all its architectures; docs/supply-chain.md says how to take a newer one.
ARG BASE_IMAGE=python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea

FROM scratch AS source
COPY pyproject.toml README.md LICENSE /
COPY locks/build.lock locks/heliograph.cdx.json /locks/
COPY api /api
COPY broker /broker
COPY operator /operator

FROM ${BASE_IMAGE} AS tools
# How pip reaches its index from here. Only these stages use it; nothing of it, such as a password, is in an image.
ARG PIP_INDEX_URL
ARG PIP_CERT
ARG SSL_CERT_FILE
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
COPY images/install images/sbom.py /src/images/
RUN python3 -m venv /opt/heliograph

FROM tools AS build
COPY locks/broker.lock /src/locks/
RUN sh /src/images/install dependencies locks/broker.lock
COPY --from=source / /src/
RUN sh /src/images/install heliograph
RUN python3 /src/images/sbom.py image broker /src/distributions.json >/opt/heliograph/sbom.cdx.json

FROM tools AS build-client
COPY locks/broker.lock locks/client.lock /src/locks/
# The command line's example data would bring pandas.
RUN sh /src/images/install dependencies locks/broker.lock
RUN sh /src/images/install dependencies locks/client.lock pulsar-client certifi
COPY --from=source / /src/
RUN sh /src/images/install heliograph
RUN python3 /src/images/sbom.py image client /src/distributions.json >/opt/heliograph/sbom.cdx.json

FROM tools AS build-operator
COPY locks/operator.lock /src/locks/
RUN sh /src/images/install dependencies locks/operator.lock
COPY --from=source / /src/
RUN sh /src/images/install heliograph
RUN python3 /src/images/sbom.py image operator /src/distributions.json >/opt/heliograph/sbom.cdx.json

FROM tools AS build-spark
COPY locks/broker.lock locks/spark.lock /src/locks/
RUN sh /src/images/install dependencies locks/broker.lock
# PySpark is published as source only, and is built by the setuptools of the lock. The lock has the tests' tools, too.
# Spark's workers would import pyspark.zip, which has no compiled modules, before the same package beside it.
RUN sh /src/images/install dependencies locks/spark.lock setuptools \
 && sh /src/images/install source locks/spark.lock pyspark \
 && sh /src/images/install dependencies locks/spark.lock \
      py4j pandas numpy pyarrow python-dateutil pytz tzdata fastavro pulsar-client certifi \
      matplotlib contourpy cycler fonttools kiwisolver packaging pillow pyparsing \
      pyiceberg sqlalchemy cachetools charset-normalizer click fsspec requests strictyaml tenacity urllib3 zstandard \
 && sh /src/images/install without pyspark/examples pyspark/data pyspark/python/lib/pyspark.zip pandas/tests pyarrow/tests pyarrow/include
COPY pipeline/build_native.py /src/pipeline/
COPY pipeline/heliograph_spark/decode/_[a-z]*.p* /src/pipeline/heliograph_spark/decode/
COPY pipeline/heliograph_spark/encode/_[a-z]*.p* /src/pipeline/heliograph_spark/encode/
RUN sh /src/images/install decoder locks/spark.lock
COPY --from=source / /src/
COPY pipeline /src/pipeline
RUN sh /src/images/install heliograph

FROM ${BASE_IMAGE} AS broker
LABEL org.opencontainers.image.title="Heliograph broker" \
      org.opencontainers.image.description="A durable message broker that speaks Apache Pulsar's protocol" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/heliograph /opt/heliograph
RUN mkdir /data && chown 10001:10001 /data
ENV PATH=/opt/heliograph/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
VOLUME /data
EXPOSE 6650 8080
STOPSIGNAL SIGTERM
ENTRYPOINT ["heliograph"]
CMD ["standalone", "--bind", "*", "--data-dir", "/data"]

FROM ${BASE_IMAGE} AS client
LABEL org.opencontainers.image.title="Heliograph client" \
      org.opencontainers.image.description="Heliograph's command line with Apache Pulsar's Python client" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build-client /opt/heliograph /opt/heliograph
ENV PATH=/opt/heliograph/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
ENTRYPOINT ["heliograph"]

FROM ${BASE_IMAGE} AS operator
LABEL org.opencontainers.image.title="Heliograph operator" \
      org.opencontainers.image.description="Keeps Heliograph's brokers, tenants, namespaces and topics as Kubernetes resources say" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build-operator /opt/heliograph /opt/heliograph
ENV PATH=/opt/heliograph/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
EXPOSE 8090
STOPSIGNAL SIGTERM
ENTRYPOINT ["heliograph-operator"]
CMD ["run"]

FROM ${BASE_IMAGE} AS java
# Debian's Java is 17 or newer, as Spark asks. Hadoop's client does not work for a user without a name.
RUN mkdir -p /usr/share/man/man1 \
 && apt-get update -q && apt-get install -q -y --no-install-recommends default-jre-headless \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb /var/log/* \
 && echo heliograph:x:10001: >>/etc/group \
 && echo heliograph:x:10001:10001::/tmp:/usr/sbin/nologin >>/etc/passwd

FROM java AS sbom-spark
COPY images/sbom.py /src/
COPY --from=build-spark /src/distributions.json /src/
RUN python3 /src/sbom.py image spark /src/distributions.json >/src/sbom.cdx.json

FROM java AS spark
LABEL org.opencontainers.image.title="Heliograph on Spark" \
      org.opencontainers.image.description="Archives, replays, compacts and measures topics with Apache Spark" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build-spark /opt/heliograph /opt/heliograph
COPY --from=sbom-spark /src/sbom.cdx.json /opt/heliograph/
COPY images/spark-entrypoint images/executor-pod.yaml images/executor-pod-assigned-user.yaml /opt/heliograph/
# Where Spark looks for itself, and mounts its settings in drivers and executors; and the file that spark-submit starts.
RUN ln -s /opt/heliograph/lib/python3*/site-packages/pyspark /opt/spark && mkdir -p /opt/spark/conf \
 && ln -s /opt/heliograph/lib/python3*/site-packages/heliograph_spark/__main__.py /opt/heliograph/heliograph-spark.py
ENV PATH=/opt/heliograph/bin:$PATH PYTHONDONTWRITEBYTECODE=1 HOME=/tmp \
    JAVA_HOME=/usr/lib/jvm/default-java SPARK_HOME=/opt/spark PYSPARK_PYTHON=/opt/heliograph/bin/python
USER 10001:10001
ENTRYPOINT ["/opt/heliograph/spark-entrypoint"]
CMD ["--help"]
