"""Error codes with which services of AWS refuse a login or an action."""

from __future__ import annotations

from typing import Final

LOGIN_CODES: Final = frozenset({
    "ExpiredToken", "ExpiredTokenException", "RequestExpired", "InvalidClientTokenId", "UnrecognizedClientException",
    "InvalidSignatureException", "SignatureDoesNotMatch", "AuthFailure", "InvalidAccessKeyId",
})  # fmt: skip
"""AWS does not accept the credentials."""
DENIED_CODES: Final = frozenset({
    "AccessDenied", "AccessDeniedException", "AccessDeniedFault", "UnauthorizedOperation",
    "Client.UnauthorizedOperation", "AuthorizationError", "AuthorizationErrorException", "403",
})  # fmt: skip
"""The credentials do not allow the action. A HEAD response has only the status."""
LOGIN_HINT: Final = "log in again: aws sso login, or aws configure; check with: aws sts get-caller-identity"
