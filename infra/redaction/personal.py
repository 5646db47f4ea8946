"""Personal data, removed where serving.personal_data names them: e-mail addresses, telephone numbers, bank accounts, names.

Patterns find candidates; phonenumbers (the port of Google's libphonenumber) and python-stdnum check that they are valid numbers.
"""

from collections.abc import Collection, Iterator

import phonenumbers
import re2
from stdnum import iban

from infra.redaction.patterns import Span, compile_bytes

EMAIL = compile_bytes(r"[A-Za-z0-9._%+\-]{1,64}@[A-Za-z0-9\-]{1,63}(?:\.[A-Za-z0-9\-]{1,63}){0,4}\.[A-Za-z]{2,24}\b")
PHONE = compile_bytes(r"(?:\+|\b00)[1-9][0-9 ()./\-]{5,24}[0-9]|\(?\b0?[1-9][0-9]{1,4}\)?[ /.\-][0-9 ()./\-]{4,18}[0-9]")
IBAN = compile_bytes(r"\b[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?\b")
DATE = compile_bytes(r"(?:19|20)[0-9]{2}[\-./][01][0-9]\b")
NOBODY = (b"example.", b"noreply", b"no-reply", b"localhost")
"""Parts of reserved addresses."""


class PersonalData:
    """Finds the chosen kinds of personal data."""

    def __init__(self, kinds: Collection[str], region: str = "", names: Collection[str] = ()) -> None:
        """`region` (ISO 3166, "DE") is the country of numbers without a country code; empty: these are not found."""
        self._kinds, self._region = frozenset(kinds), region or None
        words = sorted((name for name in names if name.strip()), key=len, reverse=True)
        listed = "|".join(re2.escape(name.encode().decode("latin-1")) for name in words)
        self._names = compile_bytes(rf"(?:{listed})", ignore_case=True) if words and "names" in self._kinds else None

    def spans(self, data: bytes) -> Iterator[Span]:
        """Yield the spans of personal data, in bytes."""
        if "email" in self._kinds:
            yield from (m.span() for m in EMAIL.finditer(data) if not any(part in m.group().lower() for part in NOBODY))
        if "phone" in self._kinds:
            yield from (m.span() for m in PHONE.finditer(data) if self._is_phone(m.group().decode("latin-1")))
        if "iban" in self._kinds:
            yield from (m.span() for m in IBAN.finditer(data) if iban.is_valid(m.group().decode("latin-1")))
        if self._names:
            yield from (m.span() for m in self._names.finditer(data) if _stands_alone(data, *m.span()))

    def _is_phone(self, text: str) -> bool:
        if DATE.match(text.encode()):
            return False
        try:
            return phonenumbers.is_valid_number(phonenumbers.parse(text, self._region))
        except phonenumbers.NumberParseException:
            return False


def _stands_alone(data: bytes, start: int, end: int) -> bool:
    around = data[max(0, start - 1) : start] + data[end : end + 1]
    return not any(chr(byte).isalnum() for byte in around)
