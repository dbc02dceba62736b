/* The search of Sphinx fetches each page that it found, for an excerpt. It is given the text from page-texts.js instead, because
   browsers let no page of a folder (file:) fetch another one. */
{
  const fetchPage = window.fetch;
  const root = decodeURI(new URL(".", location.href).pathname);
  window.fetch = (address, ...more) => {
    const name = decodeURI(new URL(address, location.href).pathname).slice(root.length).replace(/\.html$/, "");
    if (!Object.hasOwn(PAGE_TEXTS, name)) return fetchPage(address, ...more);
    return Promise.resolve(new Response(`<div role="main">${PAGE_TEXTS[name]}</div>`));
  };
  /* It looks for the stems of the words, so that an excerpt about a standby does not begin where "standby" is. */
  document.addEventListener("DOMContentLoaded", () => {
    const summary = Search.makeSearchSummary;
    const words = (new URLSearchParams(location.search).get("q") ?? "").split(/\s+/).filter((word) => word !== "");
    Search.makeSearchSummary = (text, stems, ...more) => summary(text, new Set([...stems, ...words]), ...more);
  });
}
