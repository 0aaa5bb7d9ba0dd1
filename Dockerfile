# Build:  docker build -t penstock .
# Run:    docker run -p 9092:9092 -p 8080:8080 -v penstock-data:/data -e PENSTOCK_ADVERTISED=localhost:9092 penstock
#
# PENSTOCK_ADVERTISED is host:port as clients reach this broker. It is needed, because inside a
# container the broker listens on every address and cannot know its name outside. Listening beyond
# loopback without TLS needs --insecure; for TLS give a config file instead (docs/configuration.md):
#
#   docker run ... -v "$PWD/penstock.toml":/etc/penstock.toml penstock penstock serve --data-dir /data --config /etc/penstock.toml

FROM python:3.13-slim AS build
WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist . \
 && python -m venv /opt/penstock \
 && /opt/penstock/bin/pip install --no-cache-dir /dist/*.whl

FROM python:3.13-slim
RUN useradd --system --uid 10001 --home-dir /data --shell /usr/sbin/nologin penstock \
 && install -d -o penstock -g penstock -m 0750 /data
COPY --from=build /opt/penstock /opt/penstock
ENV PATH=/opt/penstock/bin:$PATH \
    PENSTOCK_ADVERTISED=
USER penstock
WORKDIR /data
VOLUME /data
EXPOSE 9092 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/health/ready', timeout=2)"]
# exec: the broker itself gets the stop signal, not the shell.
CMD ["sh", "-c", "exec penstock serve --data-dir /data --kafka 0.0.0.0:9092 --http 0.0.0.0:8080 --advertised \"${PENSTOCK_ADVERTISED:?set it to host:port as clients reach this broker}\" --insecure"]
