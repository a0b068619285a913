# docker build -t ttmbench . && docker run --rm ttmbench
FROM python:3.12-slim

WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY ttmbench ttmbench
COPY tasks tasks
COPY model_adapters model_adapters
RUN pip install --no-cache-dir . && mkdir -m 777 /work

# Results, and what the hub and ttmbench keep, lie below one folder that can be mounted, for whichever user.
ENV HOME=/work
WORKDIR /work
USER 1000
ENTRYPOINT ["ttmbench"]
CMD ["--model", "tiny-clip", "--tasks", "shapes_color", "--ttm", "--seeds", "0,1,2,3", "--output_path", "results/first"]
