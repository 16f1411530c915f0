# Image of a worker: vLLM's own image with Sluice's launcher beside it, in an environment of its own, so that neither
# changes the other's packages. Build from the root of the repository: -f deploy/worker.Dockerfile .
# BASE has to have python3 with pip, and vllm on the path. 0.33.0 is the first that knows M3.1 Flash.
ARG BASE=vllm/vllm-openai:v0.33.0

FROM ${BASE} AS build
WORKDIR /src
ENV PYTHONHASHSEED=0 SOURCE_DATE_EPOCH=1700000000 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
COPY deploy/runtime.lock deploy/build.lock ./
RUN --mount=type=secret,id=pip,target=/etc/pip.conf,required=false \
    python3 -m venv --without-pip /opt/sluice \
    && python3 -m venv --without-pip /opt/build \
    && python3 -m pip --python /opt/sluice/bin/python3 install --no-compile --require-hashes --no-deps --requirement runtime.lock \
    && python3 -m pip --python /opt/build/bin/python3 install --require-hashes --no-deps --requirement build.lock
COPY pyproject.toml README.md LICENSE ./
COPY service service
RUN python3 -m pip --python /opt/build/bin/python3 wheel --no-build-isolation --no-deps --wheel-dir /wheels . \
    && python3 -m pip --python /opt/sluice/bin/python3 install --no-compile --no-index --no-deps /wheels/*.whl \
    && /opt/sluice/bin/python3 -m compileall -q -j 1 --invalidation-mode unchecked-hash /opt/sluice/lib \
    && rm -f /opt/sluice/bin/activate* /opt/sluice/bin/Activate*
# Where the engine is, under a name that does not depend on how BASE was made. Fails if there is none.
RUN mkdir -p /opt/engine/bin \
    && for name in python3 vllm; do \
         place=$(command -v "$name") || { echo "BASE has no $name" >&2; exit 1; }; \
         printf '#!/bin/sh\nexec %s "$@"\n' "$place" > "/opt/engine/bin/$name" || exit 1; \
       done \
    && chmod 755 /opt/engine/bin/*

FROM ${BASE}
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Sluice worker" \
      org.opencontainers.image.description="vLLM with Sluice's launcher: MiniMax M3.1 Flash by profile" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/sluice /opt/sluice
COPY --from=build /opt/engine /opt/engine
ENV PYTHONUNBUFFERED=1 HOME=/tmp
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
ENTRYPOINT ["/opt/sluice/bin/sluice"]
CMD ["worker", "run", "--profile", "m3.1-flash", "--host", "0.0.0.0", "--engine-python", "/opt/engine/bin/python3"]
