"""What all who write into buckets are told: which server, with which credentials, how patiently."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from holdfast.bucket_url import BUCKET_SCHEMES, bucket_problem_of, is_bucket
from holdfast.local_path import problem_of
from holdfast.settings.models import FileSettings, Secret
from holdfast.settings.units import DurationS


def _is_folder_or_bucket(value: str) -> str:
    if is_bucket(value):
        problem = bucket_problem_of(value)
    else:
        problem = problem_of(value)
        if problem is not None:
            known = ", ".join(f"{scheme}://" for scheme in BUCKET_SCHEMES)
            problem = f"{problem}, or a bucket ({known})"
    if problem is not None:
        raise ValueError(problem)
    return value


# A path of this machine, or `s3://…`.
FolderOrBucket = Annotated[str, AfterValidator(_is_folder_or_bucket)]


class BucketSettings(FileSettings):
    """How a bucket is reached. What is not said here comes from the environment, as the tools of
    each provider have it: `AWS_ACCESS_KEY_ID`, `GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_…`.
    """

    endpoint: str | None = None
    """The server, where it is not that of the provider: `https://minio.example.org:9000`."""

    allow_http: bool = False
    """Whether an endpoint may be without TLS: then data and signatures can be read on the way."""

    options: dict[str, Secret] = Field(default_factory=dict, max_length=64)
    """Settings of the object store by the names that obstore has for them, such as `region`,
    `access_key_id` and `secret_access_key`. They are shown nowhere."""

    request_timeout_s: DurationS = Field(default=30.0, gt=0, le=3600)
    """How long one request may take; a large object is sent in several."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.endpoint is None:
            return self
        if not self.endpoint.startswith(("https://", "http://")):
            raise ValueError("`endpoint` has to begin with https:// or http://")
        if self.endpoint.startswith("http://") and not self.allow_http:
            raise ValueError(
                "`endpoint` has no TLS; write https://, or `allow_http: true` if that is meant"
            )
        if "endpoint" in self.options:
            raise ValueError("`endpoint` is given twice; leave it out of `options`")
        return self
