# Builds everything into a virtual environment, then copies that alone.
FROM python:3.11.15-slim-bookworm AS build

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/headrace
WORKDIR /src
COPY . .
RUN /opt/headrace/bin/pip install --constraint constraints.txt '.[aws,gcp,runpod,ssh]'


FROM python:3.11.15-slim-bookworm

RUN groupadd --system --gid 10001 headrace \
 && useradd --system --uid 10001 --gid headrace --home-dir /var/lib/headrace --create-home headrace \
 && chmod 0700 /var/lib/headrace
COPY --from=build /opt/headrace /opt/headrace

ENV PATH=/opt/headrace/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HEADRACE_DATA_DIR=/var/lib/headrace
USER headrace
WORKDIR /var/lib/headrace
VOLUME /var/lib/headrace
EXPOSE 8080

HEALTHCHECK --interval=5s --timeout=5s --start-period=20s --retries=6 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/healthz', timeout=4)"]

ENTRYPOINT ["headrace"]
CMD ["api"]
