"""The fonts whose digits tools/font_digits.py renders: Debian's packages, unpacked into a folder and listed.

python tools/font_list.py fetch DIR      # downloads and unpacks the packages of tools/font_digits.csv
python tools/font_list.py list DIR       # the list of tools/font_digits.csv, from the packages in DIR

The list has every font with ten digits, except those whose digits look as in a font before. Needs Pillow.
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

LIST = Path(__file__).with_name("font_digits.csv")
_ALIKE = 0.35
"""Fonts are alike if their digits differ by less than this: mean |difference| over mean ink."""
_NO_DIGITS = {"LinBiolinum_K.otf", "D050000L.otf", "elegbold.ttf"}
"""Pictures of keys and ornaments in place of digits."""
_HAND = {
    "breip", "bwht", "comic-neue", "dancingscript", "dkg-handwriting", "ecolier-court", "femkeklaver",
    "havana", "humor-sans", "isabella", "joscelyn", "kaushanscript", "kiloji", "klee", "kouzan-mouhitsu",
    "kristi", "leckerli-one", "levien-typoscript", "lobster", "lobstertwo", "lxgw-wenkai", "nanum-extra",
    "navilu", "rufscript", "seto", "sjfonts", "smc-chilanka", "smc-karumbi", "tlwg-purisa-ttf",
    "tomsontalks", "yozvox-yozfont", "yusei-magic", "aoyagi-kouzan-t", "aoyagi-soseki",
}  # fmt: skip
"""Packages with handwriting, without ``fonts-``."""
_STYLES = re.compile(r"(bold|black|heavy|light|thin|medium|book|regular|italic|oblique|roman)", re.IGNORECASE)
_PLAIN = {
    **dict.fromkeys(("century-catalogue", "levien-museum"), "OFL-1.0"),
    **dict.fromkeys(("dustin", "linex"), "GPL-2+"),
    **dict.fromkeys(("sjfonts", "liberation"), "GPL-2 with font exception"),
    **dict.fromkeys(("ecolier-court", "inconsolata", "oldstandard", "tomsontalks"), "OFL-1.1"),
    **dict.fromkeys(("gfs-artemisia", "gfs-bodoni-classic", "gfs-didot", "gfs-neohellenic"), "OFL-1.1"),
    "jura": "OFL-1.1 or GPL-3",
    "lmodern": "GUST Font License",
}
"""Licences in copyright files without fields."""
Pixels = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Font:
    """One row of the list; ``hand`` is ``yes`` for handwriting."""

    package: str
    version: str
    licence: str
    hand: str
    path: str

    def file(self, folder: Path) -> Path:
        """The font's file in the folder with the unpacked packages."""
        return folder / self.package / self.path


def read_list() -> list[Font]:
    """All fonts of the list."""
    with LIST.open(newline="") as opened:
        return [Font(**row) for row in csv.DictReader(opened)]


def glyph(font: Path, digit: int, side: int) -> Pixels | None:
    """The digit in the middle of a square image, its longer side 70 % of it; None if the font has none."""
    face = ImageFont.truetype(str(font), 2 * side)
    left, top, right, bottom = face.getbbox(str(digit))
    if right - left < side // 16 or bottom - top < side // 4:
        return None
    image = Image.new("L", (int(right - left), int(bottom - top)))
    ImageDraw.Draw(image).text((-left, -top), str(digit), fill=255, font=face)
    box = image.getbbox()
    if box is None:
        return None
    image = image.crop(box)
    scale = 0.7 * side / max(image.size)
    width, height = (max(1, round(length * scale)) for length in image.size)
    whole = Image.new("L", (side, side))
    whole.paste(
        image.resize((width, height), Image.Resampling.BOX), ((side - width) // 2, (side - height) // 2)
    )
    return np.asarray(whole, np.float32) / 255


def digits(font: Path, side: int) -> Pixels | None:
    """The ten digits; None if one is missing, or if several look the same, as placeholders do."""
    found = []
    for digit in range(10):
        try:
            one = glyph(font, digit, side)
        except OSError:  # a bitmap font, or damaged
            return None
        if one is None:
            return None
        found.append(one)
    stacked = np.stack(found)
    apart = min(np.abs(stacked[i] - stacked[j]).mean() for i in range(10) for j in range(i))
    return stacked if apart > 0.01 else None


def fetch(folder: Path) -> None:
    """Download and unpack the packages of the list, each into a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in dict.fromkeys(font.package for font in read_list()):
        subprocess.run(["apt-get", "download", package], cwd=folder, check=True)
        for archive in folder.glob(f"{package}_*.deb"):
            subprocess.run(["dpkg", "-x", archive, folder / package], check=True)
            archive.unlink()


def listed(folder: Path) -> list[Font]:
    """The fonts of the unpacked packages, without those that look like an earlier one."""
    chosen: list[Font] = []
    kept: list[Pixels] = []
    packages = sorted(path for path in folder.iterdir() if path.is_dir())
    versions = _versions([package.name for package in packages])
    for package in packages:
        licence = _licence(package)
        paths = [path for path in package.rglob("*") if path.suffix.lower() in {".ttf", ".otf"}]
        for path in sorted(paths, key=lambda path: (len(_STYLES.findall(path.stem)), path.name)):
            looks = None if path.name in _NO_DIGITS else digits(path, 28)
            if looks is None or any(_alike(looks, other) for other in kept):
                continue
            kept.append(looks)
            about = {"package": package.name, "version": versions[package.name], "licence": licence}
            about["hand"] = "yes" if package.name.removeprefix("fonts-") in _HAND else "no"
            chosen.append(Font(path=str(path.relative_to(package)), **about))
    return chosen


def _alike(one: Pixels, other: Pixels) -> bool:
    return bool(np.abs(one - other).mean() < _ALIKE * min(one.mean(), other.mean()))


def _versions(packages: list[str]) -> dict[str, str]:
    command = ["apt-cache", "show", "--no-all-versions", *packages]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return dict(re.findall(r"^Package: (\S+)$.*?^Version: (\S+)$", shown, re.MULTILINE | re.DOTALL))


def _licence(package: Path) -> str:
    """What the copyright file says of everything but Debian's packaging."""
    text = (package / "usr/share/doc" / package.name / "copyright").read_text(errors="replace")
    names = []
    for paragraph in text.split("\n\n"):
        files = re.search(r"^Files:\s*(.*)", paragraph, re.MULTILINE)
        licence = re.search(r"^License:\s*(.*)", paragraph, re.MULTILINE)
        if files and licence and not files[1].startswith("debian/"):
            names.append(licence[1].strip())
    return " / ".join(sorted(set(filter(None, names)))) or _PLAIN[package.name.removeprefix("fonts-")]


def main(command: str, folder: str) -> None:
    """Run one of the two commands."""
    if command == "fetch":
        fetch(Path(folder))
        return
    fonts = listed(Path(folder))
    with LIST.open("w", newline="") as opened:
        writer = csv.DictWriter(
            opened, ["package", "version", "licence", "hand", "path"], lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(vars(font) for font in fonts)
    print(f"{len(fonts)} fonts of {len({font.package for font in fonts})} packages")


if __name__ == "__main__":
    main(*sys.argv[1:])
