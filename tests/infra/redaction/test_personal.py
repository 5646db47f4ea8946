"""Personal data goes where settings name its kind, and stays elsewhere."""

import pytest

from infra.redaction.personal import PersonalData
from infra.redaction.redactor import REDACTED, Redactor
from infra.redaction.worker import personal_data
from infra.settings.schema import PersonalData as Setting
from infra.settings.schema import Serving

DATA = {
    "email": "ada.lovelace@analytical.co.uk",
    "phone": "+49 30 901820",
    "iban": "DE89 3704 0044 0532 0130 00",
    "names": "Ada Lovelace",
}
OTHERS = ("1.2.3.4:8080", "2026-11-23 10:00:00", "0x7f2b 4f1a", "GB00WEST12345698765432", "user@example.com")


@pytest.mark.parametrize("kind", DATA)
def test_a_kind_goes_only_where_it_is_named(kind: str) -> None:
    text = "\n".join(f"# written by {value}, see below" for value in DATA.values())
    redacted = Redactor(PersonalData([kind], names=[DATA["names"].upper()])).text(text)
    assert DATA[kind] not in redacted and all(value in redacted for other, value in DATA.items() if other != kind)
    assert Redactor().text(text) == text


def test_a_number_without_a_country_code_is_one_of_its_region() -> None:
    assert REDACTED in Redactor(PersonalData(["phone"], "DE")).text("tel = '030 901820'")
    assert REDACTED not in Redactor(PersonalData(["phone"])).text("tel = '030 901820'")


@pytest.mark.parametrize("text", OTHERS)
def test_what_only_looks_like_personal_data_stays(text: str) -> None:
    assert Redactor(PersonalData(["email", "phone", "iban"], "DE")).text(f"x = '{text}'") == f"x = '{text}'"


def test_a_name_within_a_word_stays() -> None:
    assert Redactor(PersonalData(["names"], names=["Ada"])).text("adapter, ada") == f"adapter, {REDACTED}"


def test_no_kind_is_named_by_default() -> None:
    assert Serving().personal_data.kinds == () and personal_data(None) is None
    assert personal_data(Setting(kinds=("iban",)).model_dump()) is not None
