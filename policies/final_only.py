"""Checkpoints at the ends of requests."""

from hybridcache.policies.admission import AdmissionPolicy


class FinalOnly(AdmissionPolicy):
    """Only the state after a request's last computed token is kept: what a continued chat resumes at."""

    name = "final_only"
