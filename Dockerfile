# Images of Heliograph. Target `broker` runs one broker; operator and spark come with their parts.
#   docker build --target broker -t heliograph/broker .        or, without Docker: scripts/build-image
ARG BASE_IMAGE=python:3.12-slim

FROM ${BASE_IMAGE} AS build
# How pip reaches its index from here. Of this stage only: nothing of it, a password least of all, is in the image.
ARG PIP_INDEX_URL
ARG PIP_CERT
ARG SSL_CERT_FILE
COPY requirements.lock /src/requirements.lock
RUN python3 -m venv /opt/heliograph \
 && /opt/heliograph/bin/python -m pip install --no-cache-dir --disable-pip-version-check --require-hashes \
    --only-binary :all: -r /src/requirements.lock
COPY pyproject.toml README.md LICENSE /src/
COPY broker /src/broker
RUN /opt/heliograph/bin/python -m pip install --no-cache-dir --disable-pip-version-check --no-deps /src \
 && /opt/heliograph/bin/python -m pip uninstall -y -q pip setuptools \
 && find /opt/heliograph -name __pycache__ -prune -exec rm -rf {} +

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
