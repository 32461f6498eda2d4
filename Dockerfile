# The broker in a container: built from this repository with pip, run as nobody special.
#
#   docker build -t braidmq .
#   docker build -t braidmq:flight --build-arg EXTRAS=server,columnar .     with Arrow Flight; larger
#
# compose.yaml beside it adds Prometheus and Grafana. docs/howto/container.md says the rest.

ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
ARG EXTRAS=server
# A compiler for the hot modules; it stays in this stage.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY requirements.lock ./
# The versions that the tests ran with. Hashes are left out: the wheel made here has none, and
# pip asks for all or for none.
RUN sed -n 's/^\([A-Za-z0-9][^\\]*[^ \\]\) *\\$/\1/p' requirements.lock > constraints.txt
COPY pyproject.toml setup.py README.md LICENSE ./
COPY src src
RUN python -m venv /opt/braidmq \
 && BRAIDMQ_STRICT_BUILD=1 PIP_CONSTRAINT=constraints.txt \
    /opt/braidmq/bin/pip install --no-cache-dir ".[${EXTRAS}]" \
 && /opt/braidmq/bin/python -c "from braidmq.base.build import is_compiled; is_compiled() or exit('the hot modules run interpreted')" \
 && /opt/braidmq/bin/pip uninstall --yes pip \
 && find /opt/braidmq -name __pycache__ -prune -exec rm -rf {} +

FROM python:${PYTHON}-slim
RUN useradd --system --uid 10001 --home-dir /var/lib/braidmq --create-home braidmq \
 && install --directory --owner=braidmq --group=braidmq --mode=0750 /etc/braidmq
COPY --from=build /opt/braidmq /opt/braidmq
COPY ops/container.toml /usr/share/braidmq/container.toml
COPY ops/ready.py /usr/share/braidmq/ready.py
COPY --chmod=0755 ops/first-start.sh /usr/share/braidmq/first-start.sh
ENV PATH=/opt/braidmq/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    BRAIDMQ_CONFIG=/etc/braidmq/braidmq.toml
USER braidmq
WORKDIR /var/lib/braidmq
VOLUME ["/var/lib/braidmq", "/etc/braidmq"]
# Blip, Vibe, Qumbed, HTTP, Arrow Flight.
EXPOSE 5555/tcp 2925/tcp 6121/udp 9100/tcp 8815/tcp
# Ready, and not only alive: 503 while the log is recovered, and when it has failed.
HEALTHCHECK --interval=10s --timeout=6s --start-period=120s --retries=3 \
  CMD ["python", "/usr/share/braidmq/ready.py", "127.0.0.1:9100"]
# SIGTERM lets acknowledgements arrive and commits; see limits.drain_s.
STOPSIGNAL SIGTERM
ENTRYPOINT ["braidmq"]
CMD ["serve"]
