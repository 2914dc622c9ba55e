"""Chromium for the tests of the page: Debian's package, driven by playwright."""

import contextlib
import os
import shutil

CHROMIUM = os.environ.get("INFERD_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
ARGS = ["--no-sandbox", "--disable-dev-shm-usage"]  # CI runs as root, and its /dev/shm may be small

# What the page must never do is collected in the page itself.
SPY = """
window.violations = [];
addEventListener("securitypolicyviolation", e => window.violations.push(e.violatedDirective + " " + e.blockedURI));
"""


def why_not():
    """Why there is no browser, or ""."""
    if not os.path.exists(CHROMIUM):
        return "chromium is not installed (scripts/deps --dev)"
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "the package playwright is not installed (scripts/venv)"
    return ""


@contextlib.contextmanager
def chromium():
    from playwright.sync_api import sync_playwright
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """A page with the console errors, exceptions and violations of the policy that it had."""

    def __init__(self, browser, width=1366, height=768, scheme="dark", **more):
        self.context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, **more)
        self.context.set_default_timeout(15000)
        self.page = self.context.new_page()
        self.page.add_init_script(SPY)
        self.problems = []
        self.page.on("pageerror", lambda e: self.problems.append(str(e)))
        self.page.on("console", lambda m: m.type == "error" and not m.text.startswith("Failed to load resource")
                     and self.problems.append(m.text))

    def close(self):
        """Closes it; what was wrong is returned."""
        with contextlib.suppress(Exception):
            self.problems += self.page.evaluate("window.violations")
        self.context.close()
        return self.problems
