# Images of Heliograph: `broker` runs one broker, `operator` keeps brokers on Kubernetes, and `client` is the command line
# with Pulsar's Python client, for a pod that publishes or looks on. A fourth, spark, comes with its part.
#   docker build --target broker -t heliograph/broker .        or, without Docker: scripts/build-image
ARG BASE_IMAGE=python:3.12-slim

FROM ${BASE_IMAGE} AS tools
# How pip reaches its index from here. Of these stages only: nothing of it, a password least of all, is in an image.
ARG PIP_INDEX_URL
ARG PIP_CERT
ARG SSL_CERT_FILE
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
COPY images/install /src/images/
RUN python3 -m venv /opt/heliograph

FROM tools AS build
COPY requirements.lock /src/
RUN sh /src/images/install dependencies requirements.lock
COPY . /src/
RUN sh /src/images/install heliograph

FROM tools AS build-client
COPY requirements.lock requirements-client.lock /src/
# The command line's example data would bring pandas.
RUN sh /src/images/install dependencies requirements.lock
RUN sh /src/images/install dependencies requirements-client.lock pulsar-client certifi
COPY . /src/
RUN sh /src/images/install heliograph

FROM tools AS build-operator
COPY requirements-operator.lock /src/
RUN sh /src/images/install dependencies requirements-operator.lock
COPY . /src/
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
CMD ["standalone", "--bind", "0.0.0.0", "--data-dir", "/data"]

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
